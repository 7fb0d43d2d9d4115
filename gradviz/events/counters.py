"""The numbers of tensors, nodes, passes and scopes: one count of each in a process, for all sources."""

import itertools
from collections.abc import Callable

next_tensor_number: Callable[[], int] = itertools.count(1).__next__
next_node_number: Callable[[], int] = itertools.count(1).__next__
next_pass_number: Callable[[], int] = itertools.count(1).__next__
next_scope_number: Callable[[], int] = itertools.count(1).__next__
next_optimizer_number: Callable[[], int] = itertools.count(1).__next__
