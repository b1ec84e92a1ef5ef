"""The images that a node in a test needs besides Setu's, as OCI archives: Kubernetes' pause, and curl with its libraries.

    images.py PAUSE FOLDER
"""

import hashlib
import re
import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

# It has no ending, so its loader is named here.
loader = SourceFileLoader("image", str(Path(__file__).resolve().parents[3] / ".ci/image"))
image = module_from_spec(spec_from_loader("image", loader))
loader.exec_module(image)


def executable(path, inside):
    """A program and the libraries that it is linked with, by their places in the image."""
    listed = subprocess.run(["ldd", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    libraries = re.findall(r"(?:=> )?(/\S+) \(0x", listed)
    held = {inside: path, **{library.lstrip("/"): library for library in libraries}}
    return {name: (0o755, Path(file).read_bytes()) for name, file in held.items()}


def pack(name, files, entry, path):
    """Writes a single-layer image for this machine's architecture."""
    archive = image.Archive()
    unpacked = image.tar(files, 0)
    machine = subprocess.run(["uname", "-m"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    architecture = next(of for of, (known, _) in image.ARCHITECTURES.items() if known == machine)
    config = archive.add(image.CONFIG, {
        "architecture": architecture,
        "os": "linux",
        "config": {"Entrypoint": [entry], "User": f"{image.USER}:{image.USER}", "Env": ["PATH=/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(unpacked).hexdigest()}"]},
    })
    layer = archive.add(image.LAYER.removesuffix("+gzip"), unpacked)
    manifest = {"schemaVersion": 2, "mediaType": image.MANIFEST, "config": config, "layers": [layer]}
    index = archive.add(image.MANIFEST, manifest)
    index["annotations"] = {"io.containerd.image.name": name}
    archive.write(path, index, 0)


pause, folder = Path(sys.argv[1]), Path(sys.argv[2])
pack("docker.io/library/pause:e2e", executable(pause, "pause"), "/pause", folder / "pause.tar")
curl = executable(shutil.which("curl"), "usr/bin/curl")
pack("docker.io/library/curl:e2e", curl, "/usr/bin/curl", folder / "curl.tar")
