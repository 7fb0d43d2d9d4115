"""Programs of several ranks, each with one fault between the ranks or with none, which `rank_launch.py` runs. The line
that a rule has to name ends with `# <- RULE`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gradviz.diagnose.between_ranks import RANK_RULES
from gradviz.diagnose.text import page_of
from tests.ranks.rank_examples import cured_example
from tests.ranks.rank_helpers import Net, average, batches, model, sgd, train, wrapped

rank, world = 0, 1  # in the file that a program is run from, those of its process


# --- healthy


def averaged_by_hand() -> None:
    net = model()
    optimizer = sgd(net)
    train(net, optimizer, batches(), average)


def of_one_replica_after_another() -> None:
    net = wrapped(model(rank))  # rank 0 hands out its own
    optimizer = sgd(net)
    train(net, optimizer, batches())


def loss_divided_by_the_ranks() -> None:
    net = model()
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        (net(x).pow(2).mean() / world).backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()


def gradient_divided_before_the_sum() -> None:
    net = model()
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        for p in net.parameters():
            p.grad /= world
            dist.all_reduce(p.grad)
        optimizer.step()


def sum_of_a_loss_that_is_a_sum() -> None:
    net = model()
    optimizer = sgd(net, 0.01)
    for x in batches():
        optimizer.zero_grad()
        net(x).pow(2).sum().backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()


def averaged_in_one_piece() -> None:
    net = model()
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        grads = torch.cat([p.grad.flatten() for p in net.parameters()])
        dist.all_reduce(grads)
        grads /= world
        at = 0
        for p in net.parameters():
            p.grad.copy_(grads[at : at + p.numel()].view_as(p))
            at += p.numel()
        optimizer.step()


def averaged_in_a_copy() -> None:
    net = model()
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        for p in net.parameters():
            total = p.grad.clone()
            dist.all_reduce(total)
            p.grad = total / world
        optimizer.step()


def handed_out_by_hand() -> None:
    net = model(rank)
    for tensor in net.state_dict().values():
        dist.broadcast(tensor, 0)
    optimizer = sgd(net)
    train(net, optimizer, batches(), average)


def accumulated() -> None:
    net = wrapped(model())
    optimizer = sgd(net)
    for number, x in enumerate(batches(4)):
        if number % 2 == 0:
            optimizer.zero_grad()
            with net.no_sync():
                (net(x).pow(2).mean() / 2).backward()
        else:
            (net(x).pow(2).mean() / 2).backward()
            optimizer.step()


def dropout_and_batch_norm() -> None:
    torch.manual_seed(0)
    layers = nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)
    net = wrapped(nn.Sequential(*layers))
    optimizer = sgd(net)
    train(net, optimizer, batches())


def evaluated_on_one_rank() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    replica = wrapped(net)
    optimizer = sgd(replica)
    for x in batches():
        replica.train()
        optimizer.zero_grad()
        replica(x).pow(2).mean().backward()
        optimizer.step()
        if rank == 0:
            net.eval()
            with torch.no_grad():
                net(x)


def joined() -> None:
    net = wrapped(model())
    optimizer = sgd(net)
    with net.join():
        train(net, optimizer, batches(3))


def state_of_the_optimizer_in_parts() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = wrapped(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    train(net, optimizer, batches())


def a_scheduler_that_all_step() -> None:
    net = wrapped(model())
    optimizer = sgd(net)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for x in batches():
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()


def in_shards() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = model()
    fully_shard(net, mesh=init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for x in batches():
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.01)
        optimizer.step()


def each_layer_in_shards() -> None:
    from torch.distributed.fsdp import fully_shard

    net = model()
    for layer in net:
        fully_shard(layer)
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    train(net, optimizer, batches(), lambda net: nn.utils.clip_grad_value_(net.parameters(), 0.01))


def tensors_in_parts() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    net = model()
    mesh = init_device_mesh("cpu", (world,))
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = sgd(net)
    train(net, optimizer, batches(seed=7))  # the ranks compute one batch together


def a_sequence_in_parts() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    torch.manual_seed(0)
    net = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), nn.Linear(6, 4))
    ways: Any = {
        "0": SequenceParallel(),
        "1": ColwiseParallel(input_layouts=Shard(1)),
        "2": RowwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(net, init_device_mesh("cpu", (world,)), ways)
    optimizer = sgd(net)
    torch.manual_seed(7)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(2, 4, 4)).pow(2).mean().backward()
        optimizer.step()


def a_pipeline() -> None:
    torch.manual_seed(rank)
    net = nn.Linear(3, 3) if rank == 0 else nn.Linear(3, 1)
    if rank == 0:
        scale = torch.ones(3, requires_grad=True)  # a leaf that is sent, and that nothing is computed from
        dist.send(scale, 1)
    else:
        dist.recv(torch.zeros(3), 0)
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        if rank == 0:
            hidden = net(x)
            dist.send(hidden.detach(), 1)
            gradient = torch.empty_like(hidden)
            dist.recv(gradient, 1)
            hidden.backward(gradient)
        elif rank == 1:
            given = torch.empty(4, 3)
            dist.recv(given, 0)
            given.requires_grad_()
            net(given).pow(2).mean().backward()
            dist.send(given.grad, 0)
        optimizer.step()


def a_pipeline_by_pytorch() -> None:
    """The schedule sends and receives asynchronously, and makes the tensors that it receives into. The last stage
    learns the shapes in a pass of its own."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(rank)
    net = nn.Linear(3, 3) if rank == 0 else nn.Sequential(nn.ReLU(), nn.Linear(3, 1))
    stage = PipelineStage(net, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    optimizer = sgd(net)
    for x in batches(seed=0):
        optimizer.zero_grad()
        schedule.step(*[x][rank:], target=torch.ones(4, 1) if rank else None)
        optimizer.step()


def another_tensor_from_rank_0() -> None:
    """What is handed out has another name where it comes from."""
    net = model(rank)
    for p in net.parameters():
        dist.broadcast(p.data, 0)
    train(net, sgd(net), batches(), average)
    scale = torch.ones(1) if rank == 0 else torch.empty(1)
    dist.broadcast(scale, 0)


def divided_for_all_passes_of_a_step() -> None:
    net = model()
    optimizer = sgd(net)
    for number, x in enumerate(batches(4)):
        net(x).pow(2).mean().backward()
        for p in net.parameters() if number % 2 else ():
            dist.all_reduce(p.grad)
            p.grad /= 2 * world
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def averaged_parameters() -> None:
    """Local SGD: the ranks average their parameters, every second step."""
    net = model()
    optimizer = sgd(net)
    for number, x in enumerate(batches(4)):
        train(net, optimizer, [x])
        for p in net.parameters() if number % 2 else ():
            dist.all_reduce(p.data)
            p.data /= world


def averaged_parameters_each_step() -> None:
    net = model()
    optimizer = sgd(net)
    for x in batches():
        train(net, optimizer, [x])
        with torch.no_grad():
            flat = torch.cat([p.reshape(-1) for p in net.parameters()])
            dist.all_reduce(flat)
            torch.nn.utils.vector_to_parameters(flat / world, net.parameters())


def groups_of_one_rank() -> None:
    """Each rank trains a model of its own, with the code of several."""
    groups = [dist.new_group([one]) for one in range(world)]
    net = model(rank)
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        for p in net.parameters():
            dist.all_reduce(p.grad, group=groups[rank])
        optimizer.step()


def wrapped_in_groups_of_one_rank() -> None:
    groups = [dist.new_group([one]) for one in range(world)]
    net = wrapped(model(), process_group=groups[rank])
    train(net, sgd(net), batches())


def loss_of_gathered_results() -> None:
    """Each rank computes the loss of all results, as contrastive losses do."""
    from torch.distributed.nn.functional import all_gather

    net = wrapped(model())
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        torch.cat(all_gather(net(x))).pow(2).mean().backward()
        optimizer.step()


def group_of_all_ranks() -> None:
    group = dist.new_group([*range(world)])
    net = model()
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        for p in net.parameters():
            dist.all_reduce(p.grad, group=group)
            p.grad /= world
        optimizer.step()


def parts_clipped_by_the_norm_of_the_whole() -> None:
    from torch.distributed.fsdp import fully_shard

    net = model()
    fully_shard(net)

    def clip(net: Net) -> None:
        parts = [p.grad.to_local() for p in net.parameters()]
        squares = torch.stack([part.pow(2).sum() for part in parts]).sum()
        dist.all_reduce(squares)
        for part in parts:
            part.mul_(0.01 / squares.sqrt())

    train(net, sgd(net), batches(), clip)


class OneOfTwo(nn.Module):
    """Uses one of two networks for a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([model(), model(1)])

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        result: torch.Tensor = self.parts[which](x)
        return result


def each_rank_uses_another_part() -> None:
    """What a rank does not use gets the gradient of the other, and is stepped on both."""
    net = wrapped(OneOfTwo(), find_unused_parameters=True)
    optimizer = sgd(net)
    for number, x in enumerate(batches(4)):
        optimizer.zero_grad()
        net(x, (number + rank) % 2).pow(2).mean().backward()
        optimizer.step()


def clipped_after_the_average() -> None:
    net = wrapped(model())
    train(net, sgd(net), batches(), lambda net: nn.utils.clip_grad_norm_(net.parameters(), 0.01))


def averaged_on_rank_0() -> None:
    """One rank gathers all gradients, and hands out their mean."""
    net = model()

    def collect(net: Net) -> None:
        for p in net.parameters():
            parts = [torch.empty_like(p.grad) for _ in range(world)] if rank == 0 else None
            dist.gather(p.grad, parts)
            if parts is not None:
                p.grad = torch.stack(parts).mean(0)
            dist.broadcast(p.grad, 0)

    train(net, sgd(net), batches(), collect)


def summed_on_rank_0_in_one_piece() -> None:
    net = model()

    def collect(net: Net) -> None:
        flat = torch.cat([p.grad.reshape(-1) for p in net.parameters()])
        dist.reduce(flat, 0)
        for p, part in zip(net.parameters(), flat.split([p.numel() for p in net.parameters()]), strict=True):
            if rank == 0:
                p.grad.copy_(part.view_as(p) / world)
            dist.broadcast(p.grad, 0)

    train(net, sgd(net), batches(), collect)


def clipped_by_hand_after_the_average() -> None:
    net = model()

    def clip(net: Net) -> None:
        average(net)
        norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
        for p in net.parameters():
            p.grad.mul_(0.01 / norm)

    train(net, sgd(net), batches(), clip)


def longer_than_no_limit() -> None:
    net = model()

    def clip(net: Net) -> None:
        nn.utils.clip_grad_norm_(net.parameters(), 1000.0)
        average(net)

    train(net, sgd(net), batches(), clip)


def weighted_by_the_size_of_the_batch() -> None:
    """The last batch of a rank is shorter: its gradient counts less in the mean."""
    net = model()
    optimizer = sgd(net)
    for number, x in enumerate(batches()):
        own = x[:2] if number == 2 and rank == 1 else x
        count = torch.tensor(float(len(own)))
        total = count.clone()
        dist.all_reduce(total)
        optimizer.zero_grad()
        net(own).pow(2).mean().backward()
        for p in net.parameters():
            p.grad *= len(own) / total
            dist.all_reduce(p.grad)
        optimizer.step()


def loss_weighted_by_the_size_of_the_batch() -> None:
    """The batches of rank 1 are shorter: the mean over the ranks is that over all samples."""
    net = wrapped(model())
    optimizer = sgd(net)
    for x in batches():
        own = x[:2] if rank == 1 else x
        optimizer.zero_grad()
        (net(own).pow(2).mean() * len(own) * world / 6).backward()
        optimizer.step()


def another_weight_in_the_last_batch() -> None:
    net = wrapped(model())
    optimizer = sgd(net)
    for number, x in enumerate(batches()):
        optimizer.zero_grad()
        (net(x).pow(2).mean() * (1 + rank if number == 2 else 1)).backward()
        optimizer.step()


def other_counts_of_passes() -> None:
    """Each rank divides its loss by the number of its own passes."""
    net = wrapped(model())
    optimizer = sgd(net)
    count = 2 + rank
    for step in range(2):
        optimizer.zero_grad()
        *first, last = batches(count, seed=10 * step + rank)
        with net.no_sync():
            for x in first:
                (net(x).pow(2).mean() / count).backward()
        (net(last).pow(2).mean() / count).backward()
        optimizer.step()


def frozen_on_all_ranks() -> None:
    net = model()
    net[0].requires_grad_(False)
    net = wrapped(net)
    optimizer = sgd(net)
    train(net, optimizer, batches(2))


def clipped_by_a_given_norm_of_the_whole() -> None:
    from torch.distributed.fsdp import fully_shard

    net = model()
    fully_shard(net)

    def clip(net: Net) -> None:
        norm = nn.utils.get_total_norm([p.grad for p in net.parameters()])
        nn.utils.clip_grads_with_norm_(net.parameters(), 0.01, norm.full_tensor())

    train(net, sgd(net), batches(), clip)


def parts_assigned() -> None:
    from torch.distributed.fsdp import fully_shard

    net = model()
    fully_shard(net)

    def scaled(net: Net) -> None:
        for p in net.parameters():
            p.grad = p.grad / 2
        torch._foreach_mul_([p.grad for p in net.parameters()], 0.5)

    train(net, sgd(net), batches(), scaled)


def gradients_gathered_and_averaged() -> None:
    net = model()

    def collect(net: Net) -> None:
        for p in net.parameters():
            parts = [torch.empty_like(p.grad) for _ in range(world)]
            dist.all_gather(parts, p.grad)
            p.grad = torch.stack(parts).mean(0)

    train(net, sgd(net), batches(), collect)


def experts() -> None:
    """Each rank has an expert of its own, and sends what it routes to others; the router is a replica."""
    from torch.distributed.nn.functional import all_to_all_single

    torch.manual_seed(0)
    router = nn.Linear(3, 3)
    torch.manual_seed(rank + 1)
    expert = nn.Linear(3, 3)
    net = nn.ModuleDict({"router": router, "expert": expert})
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        routed = router(x)
        answered = expert(all_to_all_single(torch.empty_like(routed), routed))
        all_to_all_single(torch.empty_like(answered), answered).pow(2).mean().backward()
        average(router)
        optimizer.step()


def a_mesh_of_replicas_and_shards() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = model()
    fully_shard(net, mesh=init_device_mesh("cpu", (world, 1), mesh_dim_names=("replicate", "shard")))
    train(net, sgd(net), batches(), lambda net: nn.utils.clip_grad_norm_(net.parameters(), 0.01))


def loss_that_all_ranks_sum() -> None:
    """The loss is the same on all ranks, and the data are not."""
    from torch.distributed.nn.functional import all_reduce

    net = wrapped(model())
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        (all_reduce(net(x).pow(2).mean()) / world).backward()
        optimizer.step()


def decayed_after_the_average_on_all_ranks() -> None:
    net = wrapped(model())

    def decayed(net: Net) -> None:
        for p in net.parameters():
            p.grad = p.grad + 0.1 * p.detach()

    train(net, sgd(net), batches(), decayed)


def own_rows_of_one_batch() -> None:
    net = wrapped(model())
    optimizer = sgd(net)
    for number, x in enumerate(batches(seed=5)):
        optimizer.zero_grad()
        own = net(x.chunk(world)[rank])
        (own / (1 + 0.1 * number)).pow(2).mean().backward()
        optimizer.step()


def mean_over_the_tokens_of_a_rank() -> None:
    net = wrapped(model())
    optimizer = sgd(net)
    for number, x in enumerate(batches()):
        tokens = 2 + (rank + number) % 2
        optimizer.zero_grad()
        losses = net(x).squeeze(1).pow(2) * (torch.arange(4) < tokens)
        (losses.sum() / tokens).backward()
        optimizer.step()


def parts_accumulated() -> None:
    from torch.distributed.fsdp import fully_shard

    net = model()
    fully_shard(net)
    optimizer = sgd(net)
    for number, x in enumerate(batches(4)):
        net.set_requires_gradient_sync(number % 2 == 1)
        (net(x).pow(2).mean() / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def groups_of_parameters() -> None:
    net = wrapped(model())
    first, *rest = net.parameters()
    optimizer = torch.optim.SGD([{"params": [first]}, {"params": rest, "lr": 0.01}], lr=0.1)
    train(net, optimizer, batches())


# --- faults, beside those of the rules' own examples


def inner_module_called() -> None:
    net = wrapped(model())
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        net.module(x).pow(2).mean().backward()
        optimizer.step()  # <- ranks-unreduced


def never_synchronised() -> None:
    net = wrapped(model())
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        with net.no_sync():
            net(x).pow(2).mean().backward()
        optimizer.step()  # <- ranks-unreduced


def once_not_synchronised() -> None:
    net = wrapped(model())
    optimizer = sgd(net)
    for number, x in enumerate(batches(4)):
        optimizer.zero_grad()
        if number == 1:
            with net.no_sync():
                net(x).pow(2).mean().backward()
        else:
            net(x).pow(2).mean().backward()
        optimizer.step()  # <- ranks-apart


def averaged_and_summed() -> None:
    net = wrapped(model())
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)  # <- ranks-sum
        optimizer.step()


def written_on_one_rank() -> None:
    net = wrapped(model())
    if rank == 0:
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(2)  # <- ranks-start
    optimizer = sgd(net)
    train(net, optimizer, batches())


def other_weight_decay() -> None:
    net = wrapped(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.1 * rank)  # <- ranks-settings
    train(net, optimizer, batches())


def other_rate_later() -> None:
    net = wrapped(model())
    optimizer = sgd(net)
    for number, x in enumerate(batches()):
        if number == 1 and rank == 1:
            optimizer.param_groups[0]["lr"] = 0.01
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        optimizer.step()  # <- ranks-settings


def used_on_one_rank() -> None:
    torch.manual_seed(0)
    net: Any = nn.ModuleDict({"a": nn.Linear(3, 1), "b": nn.Linear(3, 1)})
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        out = net["a"](x) + (net["b"](x) if rank == 0 else 0)
        out.pow(2).mean().backward()
        average(net["a"])
        optimizer.step()  # <- ranks-apart


def same_sampler_everywhere() -> None:
    from torch.utils.data import DataLoader, TensorDataset

    net = wrapped(model())
    torch.manual_seed(3)
    optimizer = sgd(net)
    for (x,) in DataLoader(TensorDataset(torch.randn(12, 3)), batch_size=4, shuffle=True):
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()  # <- ranks-data
        optimizer.step()


def buffers_not_handed_out() -> None:
    torch.manual_seed(0)
    net = wrapped(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), broadcast_buffers=False)
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()  # <- ranks-buffers
        optimizer.step()


def clipped_on_one_rank() -> None:
    net = wrapped(model())

    def clip(net: Net) -> None:
        if rank == 0:
            nn.utils.clip_grad_norm_(net.parameters(), 0.01)  # <- ranks-apart

    train(net, sgd(net), batches(), clip)


def other_factor_after_the_average() -> None:
    net = model()

    def scaled(net: Net) -> None:
        average(net)
        for p in net.parameters():
            p.grad *= 1 + rank  # <- ranks-apart

    train(net, sgd(net), batches(), scaled)


def step_left_out_on_one_rank() -> None:
    net = wrapped(model())
    optimizer = sgd(net)
    for number, x in enumerate(batches()):
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        if rank == 0 or number != 1:
            optimizer.step()  # <- ranks-steps


def other_optimizer() -> None:
    net = wrapped(model())
    kind = torch.optim.Adam if rank else torch.optim.SGD
    train(net, kind(net.parameters(), lr=0.1), batches())  # <- ranks-settings


def largest_gradient() -> None:
    net = model()

    def collect(net: Net) -> None:
        for p in net.parameters():
            dist.all_reduce(p.grad, dist.ReduceOp.MAX)  # <- ranks-sum

    train(net, sgd(net), batches(), collect)


def divided_by_another_number() -> None:
    net = model()

    def collect(net: Net) -> None:
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 8  # <- ranks-sum

    train(net, sgd(net), batches(), collect)


def another_order_of_parameters() -> None:
    net = nn.Sequential(model(), model(1))
    optimizer = sgd(net)

    def collect(net: Net) -> None:
        for part in net if rank == 0 else reversed(net):
            for p in part.parameters():
                dist.all_reduce(p.grad)  # <- ranks-collectives
                p.grad /= world

    for x in batches():
        optimizer.zero_grad()
        (net[0](x) + 2 * net[1](x)).pow(2).mean().backward()
        collect(net)
        optimizer.step()


def gradients_of_rank_0_alone() -> None:
    net = model()

    def hand_out(net: Net) -> None:
        for p in net.parameters():
            dist.broadcast(p.grad, 0)  # <- ranks-unreduced

    train(net, sgd(net), batches(), hand_out)


def reduced_to_rank_0() -> None:
    net = model()

    def collect(net: Net) -> None:
        for p in net.parameters():
            dist.reduce(p.grad, 0)  # <- ranks-unreduced
            p.grad /= world

    train(net, sgd(net), batches(), collect)


def largest_reduced_to_rank_0() -> None:
    net = model()

    def collect(net: Net) -> None:
        for p in net.parameters():
            dist.reduce(p.grad, 0, dist.ReduceOp.MAX)  # <- ranks-unreduced

    train(net, sgd(net), batches(), collect)


def part_of_no_model_clipped() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.manual_seed(0)
    w = nn.Parameter(distribute_tensor(torch.randn(8), init_device_mesh("cpu", (world,)), [Shard(0)]))
    optimizer = torch.optim.SGD([w], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (w.to_local() * (rank + 1)).pow(2).mean().backward()
        part = w.grad.to_local()
        part.mul_(0.01 / part.norm())  # <- ranks-clip
        optimizer.step()


def divided_by_two_other_numbers() -> None:
    net = model()

    def collect(net: Net) -> None:
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 8 if p.dim() == 2 else 4  # <- ranks-sum

    train(net, sgd(net), batches(), collect)


def weights_averaged_and_all_summed() -> None:
    net = model()

    def collect(net: Net) -> None:
        average(nn.ParameterList(p for p in net.parameters() if p.dim() == 2))
        for p in net.parameters():
            dist.all_reduce(p.grad)  # <- ranks-sum

    train(net, sgd(net), batches(), collect)


def clipped_by_hand_before_the_average() -> None:
    net = model()

    def clip(net: Net) -> None:
        norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
        for p in net.parameters():
            p.grad.mul_(0.01 / norm)  # <- ranks-early-clip
        average(net)

    train(net, sgd(net), batches(), clip)


def clipped_before_the_average_on_one_rank() -> None:
    net = model()

    def clip(net: Net) -> None:
        if rank == 1:
            nn.utils.clip_grad_value_(net.parameters(), 0.01)  # <- ranks-early-clip
        average(net)

    train(net, sgd(net), batches(), clip)


def clipped_for_each_pass_of_a_step() -> None:
    net = wrapped(model())
    optimizer = sgd(net)
    for number, x in enumerate(batches(4)):
        if number % 2 == 0:
            optimizer.zero_grad()
            with net.no_sync():
                net(x).pow(2).mean().backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.01)  # <- ranks-early-clip
        else:
            net(x).pow(2).mean().backward()
            optimizer.step()


def loss_doubled_on_one_rank() -> None:
    net = wrapped(model())
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        if rank == 1:
            loss = 2 * loss  # <- ranks-loss
        loss.backward()
        optimizer.step()


def loss_divided_by_another_number_on_each_rank() -> None:
    net = wrapped(model())
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        (net(x).pow(2).mean() * 3 / (1 + rank)).backward()  # <- ranks-loss
        optimizer.step()


def frozen_later_on_one_rank() -> None:
    net = model()
    optimizer = sgd(net)

    def collect(net: Net) -> None:
        for p in net.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        average(net)

    train(net, optimizer, batches(), collect)
    if rank == 0:
        net[2].weight.requires_grad = False  # <- ranks-frozen
    train(net, optimizer, batches(), collect)


def frozen_on_one_rank_and_averaged_on_the_others() -> None:
    net = model()
    if rank == 1:
        net[0].bias.requires_grad_(False)  # <- ranks-frozen

    def collect(net: Net) -> None:
        for p in net.parameters():
            gradient = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(gradient)
            if p.grad is not None:
                p.grad.copy_(gradient / world)

    train(net, sgd(net), batches(), collect)


def clipped_by_a_given_norm_of_the_part() -> None:
    from torch.distributed.fsdp import fully_shard

    net = model()
    fully_shard(net)

    def clip(net: Net) -> None:
        norm = torch.stack([p.grad.to_local().norm() for p in net.parameters()]).norm()
        nn.utils.clip_grads_with_norm_(net.parameters(), 0.01, norm)  # <- ranks-clip

    train(net, sgd(net), batches(), clip)


def multiplied_by_another_number_on_each_rank() -> None:
    from torch.distributed.fsdp import fully_shard

    net = model()
    fully_shard(net)

    def scaled(net: Net) -> None:
        for p in net.parameters():
            p.grad.mul_(0.5 / (1 + rank))  # <- ranks-clip

    train(net, sgd(net), batches(), scaled)


def frozen_before_it_is_wrapped() -> None:
    """DistributedDataParallel refuses the model."""
    net = model()
    if rank == 1:
        net[0].requires_grad_(False)  # <- ranks-frozen
    wrapped(net)


def gradients_gathered_and_one_taken() -> None:
    net = model()

    def collect(net: Net) -> None:
        for p in net.parameters():
            parts = [torch.empty_like(p.grad) for _ in range(world)]
            dist.all_gather(parts, p.grad)
            p.grad.copy_(parts[0])  # <- ranks-unreduced

    train(net, sgd(net), batches(), collect)


def assigned_after_the_average_on_one_rank() -> None:
    net = wrapped(model())

    def decayed(net: Net) -> None:
        for p in net.parameters():
            if rank == 0:
                p.grad = p.grad + 0.1 * p.detach()  # <- ranks-apart

    train(net, sgd(net), batches(), decayed)


def averaged_before_another_pass() -> None:
    net = model()
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        out = net(x)
        out.pow(2).mean().backward(retain_graph=True)
        average(net)
        out.abs().mean().backward()
        optimizer.step()  # <- ranks-apart


def stepped_on_rank_0_alone() -> None:
    net = wrapped(model())
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        if rank == 0:
            optimizer.step()  # <- ranks-steps


def another_reduction_on_one_rank() -> None:
    net = wrapped(model())
    optimizer = sgd(net, 0.01)
    for x in batches():
        optimizer.zero_grad()
        how = "sum" if rank else "mean"
        nn.functional.mse_loss(net(x), torch.zeros(4, 1), reduction=how).backward()  # <- ranks-arguments
        optimizer.step()


def another_slope_on_one_rank() -> None:
    torch.manual_seed(0)
    net = wrapped(nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(0.2 if rank else 0.01), nn.Linear(8, 1)))
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()  # <- ranks-arguments
        optimizer.step()


def parts_never_synchronised() -> None:
    from torch.distributed.fsdp import fully_shard

    net = model()
    fully_shard(net)
    net.set_requires_gradient_sync(False)
    optimizer = sgd(net)
    for x in batches():
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        optimizer.step()  # <- ranks-unreduced


def other_groups_of_parameters() -> None:
    net = wrapped(model())
    first, *rest = list(net.parameters())[:: 1 - 2 * rank]
    groups = [{"params": [first]}, {"params": rest, "lr": 0.01}]
    optimizer = torch.optim.SGD(groups, lr=0.1)  # <- ranks-settings
    train(net, optimizer, batches())


HEALTHY: tuple[Callable[[], None], ...] = (
    averaged_by_hand, of_one_replica_after_another, loss_divided_by_the_ranks, gradient_divided_before_the_sum,
    sum_of_a_loss_that_is_a_sum, averaged_in_one_piece, averaged_in_a_copy, handed_out_by_hand, accumulated,
    dropout_and_batch_norm, evaluated_on_one_rank, joined, state_of_the_optimizer_in_parts, a_scheduler_that_all_step,
    in_shards, each_layer_in_shards, tensors_in_parts, a_sequence_in_parts, a_pipeline,
    a_pipeline_by_pytorch, averaged_parameters,
    averaged_parameters_each_step, groups_of_one_rank,
    group_of_all_ranks, parts_clipped_by_the_norm_of_the_whole, divided_for_all_passes_of_a_step,
    another_tensor_from_rank_0, wrapped_in_groups_of_one_rank, loss_of_gathered_results,
    each_rank_uses_another_part, clipped_after_the_average, averaged_on_rank_0, summed_on_rank_0_in_one_piece,
    clipped_by_hand_after_the_average, longer_than_no_limit, weighted_by_the_size_of_the_batch,
    loss_weighted_by_the_size_of_the_batch, another_weight_in_the_last_batch, other_counts_of_passes,
    groups_of_parameters, parts_accumulated, own_rows_of_one_batch, mean_over_the_tokens_of_a_rank,
    loss_that_all_ranks_sum,
    decayed_after_the_average_on_all_ranks,
    gradients_gathered_and_averaged, experts, a_mesh_of_replicas_and_shards,
    frozen_on_all_ranks, clipped_by_a_given_norm_of_the_whole, parts_assigned,
)  # fmt: skip
FAULTY: tuple[Callable[[], None], ...] = (
    inner_module_called, never_synchronised, once_not_synchronised, averaged_and_summed, written_on_one_rank,
    other_weight_decay, other_rate_later, used_on_one_rank, same_sampler_everywhere, buffers_not_handed_out,
    clipped_on_one_rank, other_factor_after_the_average, step_left_out_on_one_rank, other_optimizer,
    gradients_of_rank_0_alone, reduced_to_rank_0, largest_gradient, another_order_of_parameters,
    divided_by_another_number, largest_reduced_to_rank_0, part_of_no_model_clipped,
    divided_by_two_other_numbers, weights_averaged_and_all_summed, clipped_by_hand_before_the_average,
    clipped_before_the_average_on_one_rank, clipped_for_each_pass_of_a_step, loss_doubled_on_one_rank,
    loss_divided_by_another_number_on_each_rank, frozen_later_on_one_rank, frozen_before_it_is_wrapped,
    frozen_on_one_rank_and_averaged_on_the_others,
    clipped_by_a_given_norm_of_the_part,
    multiplied_by_another_number_on_each_rank, gradients_gathered_and_one_taken,
    assigned_after_the_average_on_one_rank, averaged_before_another_pass,
    stepped_on_rank_0_alone, another_reduction_on_one_rank, another_slope_on_one_rank,
    parts_never_synchronised, other_groups_of_parameters,
)  # fmt: skip


REFUSED = {"frozen_before_it_is_wrapped", "ranks-unused"}  # that end with an error


def texts() -> dict[str, str]:
    """The text of each program by its name: `ranks-sum`, `ranks-sum.cured`, `joined`."""
    examples = {rule.id: page_of(rule).example + "\n" for rule in RANK_RULES}
    cured = {f"{name}.cured": cured_example(name, text) for name, text in examples.items()}
    return {**examples, **cured, **{one.__name__: inspect.getsource(one) for one in (*HEALTHY, *FAULTY)}}
