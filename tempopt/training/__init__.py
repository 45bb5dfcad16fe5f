"""One run: training a LightningModule once, with one parameter set and one seed.

The only room that knows Lightning. Importing it loads nothing; its names load when they are used.
"""
