"""State files: arrays and a configuration, as safetensors or NumPy's .npz, never a pickle.

    container   one file: arrays by name, and a configuration as JSON
    loading     `bnorm.load`: the object that a file holds

What an object's file holds is said where the object is.
"""
