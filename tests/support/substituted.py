"""A pytest plugin: scikit-learn's own tests get bnorm's StandardScaler in the place of theirs."""


def pytest_configure():
    import sklearn.preprocessing
    import sklearn.preprocessing._data

    from bnorm.sklearn import StandardScaler

    sklearn.preprocessing.StandardScaler = StandardScaler
    sklearn.preprocessing._data.StandardScaler = StandardScaler
