"""What the table computes with where NumPy has no function of the name.

Rules call these with arrays or, under `create_graph`, with Tensors: what a rule calls is either built of NumPy
functions that Tensors answer to, or is itself a row of the table (`@row`), and then runs as that row.
"""

from gradviz.engine.core.broadcasting import sum_to
from gradviz.engine.table.kernels.activations import *
from gradviz.engine.table.kernels.choice import *
from gradviz.engine.table.kernels.convolution import *
from gradviz.engine.table.kernels.elementwise import *
from gradviz.engine.table.kernels.indexing import *
from gradviz.engine.table.kernels.linalg import *
from gradviz.engine.table.kernels.lookups import *
from gradviz.engine.table.kernels.losses import *
from gradviz.engine.table.kernels.normalization import *
from gradviz.engine.table.kernels.norms import *
from gradviz.engine.table.kernels.padding import *
from gradviz.engine.table.kernels.pixels import *
from gradviz.engine.table.kernels.pooling import *
from gradviz.engine.table.kernels.reductions import *
from gradviz.engine.table.kernels.scatter_reduce import *
from gradviz.engine.table.kernels.selection import *
from gradviz.engine.table.kernels.shape import *
from gradviz.engine.table.kernels.softmax import *
from gradviz.engine.table.kernels.strides import *
from gradviz.engine.table.kernels.windows import *
