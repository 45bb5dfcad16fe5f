"""One run: one training of a LightningModule, with one parameter set and one seed.

No other package uses Lightning. Importing this package loads nothing; its names are loaded on first use.
"""
