"""Hyperparameters of every algorithm: frozen, validated values without torch, so that a bad config answers at once."""
