"""``gradc demo``: train one small vision transformer eagerly and compiled, and compare every gradient.

    vit.py    the model and its data        train.py   one run -> Run        show.py   the runs -> a table and a plot
    main.py   (epochs, backends, out folder) -> all of the above

Needs the extra ``demo``: scikit-learn and matplotlib.
"""
