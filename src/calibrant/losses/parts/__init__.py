"""What the losses share: reading a batch, reducing values, exchange between processes, known gradients."""
