class VersionChanges: ...


def read_changes(*a):
    raise NotImplementedError
