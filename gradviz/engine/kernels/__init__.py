"""What the table computes with where NumPy has no function of the name.

Rules call these with arrays or, under `create_graph`, with Tensors: what a rule calls is either built of NumPy
functions that Tensors answer to, or is itself a row of the table (`@row`), and then runs as that row.
"""

from gradviz.engine.kernels.choice import *
from gradviz.engine.kernels.elementwise import *
from gradviz.engine.kernels.indexing import *
from gradviz.engine.kernels.linalg import *
from gradviz.engine.kernels.norms import *
from gradviz.engine.kernels.padding import *
from gradviz.engine.kernels.reductions import *
from gradviz.engine.kernels.scatter_reduce import *
from gradviz.engine.kernels.selection import *
from gradviz.engine.kernels.shape import *
from gradviz.engine.kernels.softmax import *
from gradviz.engine.kernels.strides import *
