"""Array types shared by every module: one entry per client, always in client order."""

import numpy as np
from numpy.typing import NDArray

PerClient = NDArray[np.float64]  # (clients,)
PerClientMask = NDArray[np.bool_]  # (clients,)
