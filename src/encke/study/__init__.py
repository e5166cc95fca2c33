"""Experiments that compare all of Encke on known networks and real data.

`encke.study.zoo` has the networks, `encke.study.data` what they are trained on:

>>> from encke.study import zoo
>>> model = zoo.model("mlp", hidden=32)
>>> network = model.build(seed=0)
>>> loss = model.loss_of(network, model.sample_batch(8))
>>> loss.backward()
"""
