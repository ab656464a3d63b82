"""Makes the small model that the package ships: data, training, export, evaluation. See
`__main__`.
"""
