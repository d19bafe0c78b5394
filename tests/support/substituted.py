"""A pytest plugin: scikit-learn's tests see bnorm's StandardScaler under the name of their own."""


def pytest_configure():
    import sklearn.preprocessing
    import sklearn.preprocessing._data

    from bnorm.sklearn import StandardScaler

    sklearn.preprocessing.StandardScaler = StandardScaler
    sklearn.preprocessing._data.StandardScaler = StandardScaler
