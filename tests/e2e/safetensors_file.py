"""Files of safetensors, as their format says: a header of JSON behind its length, then the tensors' bytes."""
import json
import struct


def read(path):
    """name: (dtype, shape, bytes)"""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return {
        name: (entry["dtype"], entry["shape"], data[8 + length :][slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


def write(path, tensors):
    header, content = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(content), len(content) + len(data)]}
        content += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)
