"""The thread that ships what nobody waits for."""

from __future__ import annotations

import os
import threading

from store.errors import RecallError
from store.lease import Fence
from store.shipping.shipper import BRIEFLY, Shipper


class Worker:
    """Ships when it is woken; what fails waits for the next occasion."""

    def __init__(self, shipper: Shipper) -> None:
        self._shipper = shipper
        self._wanted: set[Fence] = set()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._stopped = False

    def wake(self, fence: Fence) -> None:
        """Ship an agent's log soon."""
        if os.getpid() != self._pid:
            return  # forked: the lease, and the thread, are the parent's
        with self._condition:
            self._wanted.add(fence)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="recall-ship")
                self._thread.start()
            self._condition.notify()

    def forget(self, fence: Fence) -> None:
        """Its release ships everything."""
        if os.getpid() == self._pid:
            with self._condition:
                self._wanted.discard(fence)

    def stop(self) -> None:
        """Take nothing more on, and end when what is under way is done."""
        if os.getpid() != self._pid:
            return
        with self._condition:
            self._stopped = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._wanted and not self._stopped:
                    self._condition.wait()
                if self._stopped:
                    return
                fence = self._wanted.pop()
            try:
                self._shipper.push(fence, most=BRIEFLY)
                self._shipper.maintain(fence)
            except RecallError:
                pass  # the records are stored; the next barrier, renewal or release sends them
