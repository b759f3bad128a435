"""What to do about an error of the file system."""

from __future__ import annotations

import errno

_NO_DESCRIPTOR = {
    errno.EMFILE: "raise the limit on open files of this process (`ulimit -n`, LimitNOFILE)",
    errno.ENFILE: "raise the limit on open files of the whole system (`sysctl fs.file-max`)",
}
_ADVICE = _NO_DESCRIPTOR | {
    errno.ENOENT: "find out who takes away files of the data folder, bring them back if you can",
    errno.EACCES: "give the user of this process the rights to it",
    errno.EPERM: "give the user of this process the rights to it, and see that no file is locked"
    " against changes (`lsattr`)",
    errno.EROFS: "mount it writable again, after a look at why it is not (`dmesg`)",
}


def advice(error: BaseException) -> str:
    """A clause for the end of a sentence that names the error: which limit to raise if no file
    could be opened any more, who to look for if one is gone, what is missing if nothing may be
    written, else to check the disk."""
    found = _ADVICE.get(error.errno or 0) if isinstance(error, OSError) else None
    return found or "check the disk"


def no_descriptor(error: OSError) -> bool:
    """Whether nothing was tried, since no file could be opened."""
    return error.errno in _NO_DESCRIPTOR
