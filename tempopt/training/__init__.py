"""One run: training a LightningModule once, with one parameter set and one seed.

No other package uses Lightning. Importing it loads nothing; its names load when they are used.
"""
