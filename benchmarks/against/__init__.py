"""A commit and the working tree, measured in turn: `python -m benchmarks --against COMMIT`.

`sides` puts both into folders of their own. `pairs` runs each workload on one side, then on the other, and changes the order from
pair to pair; `measure_one` is the program that measures one workload of one side with that side's own benchmarks. `targets` lists
the compared figures, `medians` computes medians and intervals, and `table` prints them.
"""
