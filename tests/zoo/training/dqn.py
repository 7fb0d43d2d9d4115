"""Deep Q-learning with a replay memory and a target network."""

import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F


class QNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 24)
        self.fc2 = nn.Linear(24, 24)
        self.out = nn.Linear(24, 2)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.out(x)


random.seed(0)
torch.manual_seed(0)
policy_net = QNetwork()
target_net = QNetwork()
target_net.load_state_dict(policy_net.state_dict())
target_net.eval()
optimizer = torch.optim.Adam(policy_net.parameters(), lr=1e-3)
memory = deque(maxlen=200)
TAU, GAMMA = 0.05, 0.9


def select_action(state, eps):
    if random.random() < eps:
        return random.randrange(2)
    with torch.no_grad():
        return policy_net(state.unsqueeze(0)).argmax(1).item()


def optimize_model():
    batch = random.sample(memory, 16)
    states = torch.stack([b[0] for b in batch])
    actions = torch.tensor([b[1] for b in batch])
    rewards = torch.tensor([b[2] for b in batch])
    next_states = torch.stack([b[3] for b in batch])
    q = policy_net(states).gather(1, actions[:, None]).squeeze(1)
    with torch.no_grad():
        next_q = target_net(next_states).max(1).values
    expected = rewards + GAMMA * next_q
    loss = F.smooth_l1_loss(q, expected)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    return loss.item()


state = torch.randn(4)
for _ in range(40):
    action = select_action(state, 0.5)
    next_state = 0.8 * state + 0.2 * torch.randn(4) + (action - 0.5) * 0.1
    memory.append((state, action, float(-next_state.abs().sum()), next_state))
    state = next_state
    if len(memory) >= 24:
        loss = optimize_model()
        for target, source in zip(target_net.parameters(), policy_net.parameters(), strict=True):
            target.data.copy_(TAU * source.data + (1.0 - TAU) * target.data)
print(loss)
