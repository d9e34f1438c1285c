"""What the losses share: batches, statistics over processes, known gradients, records."""
