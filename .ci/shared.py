"""What several scripts here do: find the files of a Go module, and write a tar that depends on nothing but its files."""

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests/e2e/programs"


def go(folder, *arguments):
    """Runs go in a folder of the tests' programs, and returns what it prints."""
    environment = {**os.environ, "GOWORK": "off"}
    command = ["go", *arguments]
    return subprocess.run(command, check=True, cwd=PROGRAMS / folder, env=environment, stdout=subprocess.PIPE, text=True).stdout


def module(folder, name):
    """The folder and the version of a module that this folder's go.mod requires. It is downloaded if need be."""
    found = json.loads(go(folder, "mod", "download", "-json", name))
    return Path(found["Dir"]), found["Version"].lstrip("v")


def tar(held, epoch):
    """A tar of files, as path to mode and content, and of the folders above them: as root's, in the order of their names."""
    names = set(held) | {str(up) for name in held for up in Path(name).parents if str(up) != "."}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(names):
            entry = tarfile.TarInfo(name)
            entry.mtime = epoch
            if name in held:
                entry.mode, data = held[name]
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
            else:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
    return out.getvalue()
