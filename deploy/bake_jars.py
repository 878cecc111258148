"""Copy every pinned jar into a folder of the context of an image: `python deploy/bake_jars.py FOLDER`.

Jars that the cache folder lacks are downloaded, and all are compared with the lock. Times of files are whole seconds,
as layers of images keep them: the notes beside the jars stay true, and no start computes hashes again.
"""

import os
import shutil
import sys
from pathlib import Path

from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.jars import ensure_jars, is_whole, load_pinned_jars

COPIED_AT = 1_700_000_000


def main() -> None:
    target = Path(sys.argv[1])
    target.mkdir(parents=True)
    pinned = load_pinned_jars()
    for name, jar in ensure_jars(LakeSettings(), list(pinned)).items():
        copied = Path(shutil.copyfile(jar, target / jar.name))
        os.utime(copied, (COPIED_AT, COPIED_AT))
        if not is_whole(pinned[name], copied):
            sys.exit(f"bake_jars: {copied} is not what the lock has; is the disk full?")


if __name__ == "__main__":
    main()
