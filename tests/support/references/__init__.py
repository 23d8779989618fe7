"""Independent NumPy loops: each algorithm once more, client by client, from its paper and nothing else.

Every function takes ``operators``, one callable a client that maps a point to its operator
(grad_x f_i, -grad_y f_i), the start ``z``, the ``cohorts`` (ids, one list a round), the local steps ``K`` and the
hyper-parameters, and returns the list of points after each round.
"""
