# SPDX-License-Identifier: Apache-2.0
"""The library's failures as Python exceptions. Each is also the built-in exception that fits it best."""


class Error(RuntimeError):
    """A call that failed. The message is the library's: the field, what it got, what it wants."""


class InvalidArgument(Error, ValueError):
    """An argument is wrong."""


class NotDense(InvalidArgument):
    """The last dimension of a row tensor is not dense; a dense copy would do."""


class Unsupported(Error, NotImplementedError):
    """Legal, but no kernel of this backend runs it; the message says why."""


class NoDevice(Error):
    """No such backend or device here; the message says what would help."""


class OutOfMemory(Error, MemoryError):
    """The host or the device could not give memory."""


# By mica_status; what is not here (a driver's error, a defect of the library) is a plain Error.
OF_STATUS = {1: InvalidArgument, 2: Unsupported, 3: NoDevice, 4: OutOfMemory}
