"""What every entry of a catalogue promises: one test for each entry, one sub-test for each promise."""


class Contract:
    """Promises, each a function of what describes an entry; its name says what is promised."""

    def __init__(self):
        self._promises = []

    def promise(self, check=None, *, only=lambda *_: True):
        """Add a promise, of some entries ``only`` if need be; used as a decorator."""
        if check is None:
            return lambda given: self.promise(given, only=only)
        self._promises.append((check, only))
        return check

    def check(self, subtests, *entry):
        """Check every promise of an entry; a broken one does not hide the others."""
        kept = [check for check, only in self._promises if only(*entry)]
        assert kept
        for check in kept:
            with subtests.test(check.__name__.replace("_", " ")):
                check(*entry)
