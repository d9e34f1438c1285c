"""The papers: experiments, claims, verdicts and printed numbers; no other room knows them."""
