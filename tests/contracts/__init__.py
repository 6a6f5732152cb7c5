"""What every consumer promises, tried with each consumer that there is: ``consumer.py`` says what, ``drivers.py`` how.

The services that move whole batches have no handlers. Their promises are those of ``tests/reliability``, which runs
over all of them.
"""
