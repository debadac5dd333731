"""Make all pictures, beside the scripts or in another folder: ``python docs/gallery [FOLDER]``."""

import runpy

from look import FOLDER

for script in sorted(FOLDER.glob("[!_]*.py")):
    runpy.run_path(str(script))
