import sys

from quire_server import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
