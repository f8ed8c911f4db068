"""From silver to gold: what the agents wrote, hour by hour and day by day.

Every function here goes from DataFrames to a DataFrame, and gives the same rows whatever the order of its input, and
however often a row is in it. :mod:`kjbod.fleet.rollup.run` knows the order of things and is the only one that writes.
"""
