"""State files: arrays and a configuration, as safetensors or NumPy's .npz, never a pickle.

    replacing   a file that is there completely or not at all
    container   one file: arrays by name, and a configuration as JSON

The content of a layer's file is defined in `layers/saving.py`, that of a transformer's in `transformer/saving.py`.
`loading.py`, above both, makes the object of a file.
"""
