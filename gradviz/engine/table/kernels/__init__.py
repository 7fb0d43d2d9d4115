"""The functions of the table that NumPy does not have.

Rules call them with arrays, or with Tensors under `create_graph`. So a kernel that rules call is made of NumPy
functions, which Tensors implement, or it is a row of the table itself (`@row`), which runs on Tensors.
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
