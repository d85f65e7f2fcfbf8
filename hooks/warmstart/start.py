"""Run a hook: `start.py MODULE PREFIX RELEASE`, by packaging/libexec/hook.in. Hot path; each run compiles this file.

A broken installation must not drain nodes: only the hook itself may return a status other than 0.
"""

import gc
import os
import sys


def _say(words: str) -> None:
    """Tell stderr, and syslog: slurmd drops what a hook writes to stderr."""
    job = os.environ.get("SLURM_JOB_ID", "")
    words = f"warmstart: {sys.argv[1].rpartition('.')[2]} of job {job} {words}"
    sys.stderr.write(f"{words}\n")
    os.spawnv(os.P_WAIT, "/usr/bin/logger", ["logger", "-t", "warmstart", "-p", "daemon.err", words])  # noqa: S606


if __name__ == "__main__":
    gc.disable()  # a hook lives for milliseconds
    try:
        module, prefix, release = sys.argv[1:]
        # Resolve the link once: this run keeps its release even if `make install` installs another one meanwhile.
        release = os.path.realpath(release)
        seen = os.stat(release)
        if seen.st_mode & 0o022 or (seen.st_uid and seen.st_uid != os.geteuid()):
            words = f"did nothing: others than root can change {release}; chown -R root and chmod -R go-w "
            _say(f"{words}what warmstart doctor names, and find out what was changed there")
            sys.stderr.flush()
            os._exit(0)
        sys.path.insert(0, release)
        from warmstart import hot

        hot.install(release)
        status = __import__(f"warmstart.{module}", fromlist=["main"]).main(prefix)
    except BaseException as error:  # noqa: BLE001 - whatever it is
        status = 0
        try:
            import traceback

            traceback.print_exc()
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.filename}:{place.lineno}"
            _say(f"failed: {error!r:.500} ({where}); run warmstart doctor, or install warmstart anew")
        except Exception:  # noqa: BLE001, S110 - no process or memory is left to say it
            pass
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # skip the interpreter's clean-up
