import sys

from quire_server import ROOT

for folder in ("scripts", "tools"):
    sys.path.insert(0, str(ROOT / folder))
