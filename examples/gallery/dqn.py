"""DQN with a replay memory and a target network that follows softly."""

import random
from collections import deque, namedtuple

import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)
Transition = namedtuple("Transition", "state action next_state reward")
memory = deque(maxlen=500)
BATCH, GAMMA, TAU = 32, 0.99, 0.005


class DQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Linear(4, 32)
        self.layer2 = nn.Linear(32, 32)
        self.layer3 = nn.Linear(32, 2)

    def forward(self, x):
        x = torch.relu(self.layer1(x))
        x = torch.relu(self.layer2(x))
        return self.layer3(x)


policy_net, target_net = DQN(), DQN()
target_net.load_state_dict(policy_net.state_dict())
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-3, amsgrad=True)


def select_action(state):
    if random.random() < 0.3:
        return torch.tensor([[random.randrange(2)]])
    with torch.no_grad():
        return policy_net(state).max(1).indices.view(1, 1)


def optimize_model():
    if len(memory) < BATCH:
        return None
    batch = Transition(*zip(*random.sample(memory, BATCH), strict=True))
    non_final = torch.tensor([state is not None for state in batch.next_state])
    next_states = torch.cat([state for state in batch.next_state if state is not None])
    values = policy_net(torch.cat(batch.state)).gather(1, torch.cat(batch.action))
    next_values = torch.zeros(BATCH)
    with torch.no_grad():
        next_values[non_final] = target_net(next_states).max(1).values
    expected = (next_values * GAMMA) + torch.cat(batch.reward)
    loss = nn.SmoothL1Loss()(values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    return loss


state = torch.randn(1, 4)
for _ in range(60):
    action = select_action(state)
    final = random.random() < 0.1
    next_state = None if final else state + 0.1 * torch.randn(1, 4) + 0.1 * (2 * action - 1)
    reward = torch.tensor([1.0 if abs(float(state[0, 0])) < 1 else 0.0])
    memory.append(Transition(state, action, next_state, reward))
    state = torch.randn(1, 4) if final else next_state
    loss = optimize_model()
    following = target_net.state_dict()
    for name, value in policy_net.state_dict().items():
        following[name] = value * TAU + following[name] * (1 - TAU)
    target_net.load_state_dict(following)
print(f"loss {loss.item():.4f}")
