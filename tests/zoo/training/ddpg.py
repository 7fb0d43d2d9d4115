"""Deterministic actor and critic with a replay memory and slow target networks."""

import copy
import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F


class Actor(nn.Module):
    def __init__(self, state, action):
        super().__init__()
        self.fc1 = nn.Linear(state, 24)
        self.fc2 = nn.Linear(24, action)

    def forward(self, s):
        hidden = torch.relu(self.fc1(s))
        return torch.tanh(self.fc2(hidden))


class Critic(nn.Module):
    def __init__(self, state, action):
        super().__init__()
        self.fc1 = nn.Linear(state + action, 24)
        self.fc2 = nn.Linear(24, 1)

    def forward(self, s, a):
        hidden = torch.relu(self.fc1(torch.cat([s, a], 1)))
        return self.fc2(hidden)


class Agent:
    def __init__(self, state, action, gamma=0.95, tau=0.05):
        self.actor, self.critic = Actor(state, action), Critic(state, action)
        self.actor_target, self.critic_target = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=2e-3)
        self.memory = deque(maxlen=200)
        self.gamma, self.tau = gamma, tau

    def act(self, state, noise=0.2):
        with torch.no_grad():
            action = self.actor(state.unsqueeze(0))[0]
        return (action + noise * torch.randn_like(action)).clamp(-1, 1)

    def learn(self, size):
        s, a, r, s2 = map(torch.stack, zip(*random.sample(self.memory, size), strict=False))
        with torch.no_grad():
            following = self.critic_target(s2, self.actor_target(s2))
            target = r + self.gamma * following
        value = self.critic(s, a)
        critic_loss = F.mse_loss(value, target)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()

        proposed = self.actor(s)
        actor_loss = -self.critic(s, proposed).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()

        self.soft_update(self.actor, self.actor_target)
        self.soft_update(self.critic, self.critic_target)
        return critic_loss.item(), actor_loss.item()

    def soft_update(self, source, target):
        for t, s in zip(target.parameters(), source.parameters(), strict=False):
            t.data.copy_(self.tau * s.data + (1.0 - self.tau) * t.data)


def main():
    random.seed(0)
    torch.manual_seed(0)
    agent = Agent(3, 1)
    state = torch.randn(3)
    for step in range(60):
        action = agent.act(state)
        following = 0.8 * state + 0.3 * action + 0.1 * torch.randn(3)
        reward = -(following**2).sum().view(1)
        agent.memory.append((state, action, reward, following))
        state = following
        if step >= 32 and step % 2 == 0:
            told = agent.learn(16)
    print(" ".join(f"{v:.4f}" for v in told))


if __name__ == "__main__":
    main()
