"""How the columns of a raw table become numbers: learned once, kept in the model, applied to every shard."""
