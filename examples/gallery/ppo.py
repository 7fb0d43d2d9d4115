"""PPO on a cart whose pole has to stay upright, written out."""

import math

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
GAMMA, CLIP = 0.98, 0.2


class Cart:
    def reset(self):
        self.state = [0.0, 0.0, 0.05, 0.0]
        return self.state

    def step(self, action):
        x, speed, angle, turn = self.state
        force = 10.0 if action else -10.0
        acceleration = 9.8 * math.sin(angle) - 0.9 * force * math.cos(angle)
        turn += 0.02 * acceleration
        speed += 0.02 * force
        self.state = [x + 0.02 * speed, speed, angle + 0.02 * turn, turn]
        return self.state, 1.0, abs(self.state[2]) > 0.4


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 32)
        self.actor = nn.Linear(32, 2)
        self.critic = nn.Linear(32, 1)

    def policy(self, x):
        return torch.softmax(self.actor(torch.tanh(self.body(x))), dim=-1)

    def value(self, x):
        return self.critic(torch.tanh(self.body(x)))


def rollout(env, model, length):
    rows = []
    state = env.reset()
    for _ in range(length):
        probabilities = model.policy(torch.tensor(state, dtype=torch.float32))
        action = Categorical(probabilities).sample().item()
        following, reward, done = env.step(action)
        rows.append((state, action, reward, following, probabilities[action].item(), done))
        state = env.reset() if done else following
    return rows


def batch_of(rows):
    states, actions, rewards, following, probabilities, done = zip(*rows, strict=True)
    column = lambda values: torch.tensor(values, dtype=torch.float32).unsqueeze(1)
    return (
        torch.tensor(states, dtype=torch.float32),
        torch.tensor(actions).unsqueeze(1),
        column(rewards),
        torch.tensor(following, dtype=torch.float32),
        column(probabilities),
        column([0.0 if end else 1.0 for end in done]),
    )


def advantages(deltas):
    found, running = [], 0.0
    for delta in deltas.flip(0):
        running = delta.item() + GAMMA * 0.95 * running
        found.append([running])
    return torch.tensor(found[::-1])


env, model = Cart(), ActorCritic()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
for _ in range(3):
    s, a, r, following, old, alive = batch_of(rollout(env, model, 40))
    for _ in range(3):
        target = r + GAMMA * model.value(following) * alive
        advantage = advantages((target - model.value(s)).detach())
        ratio = torch.exp(torch.log(model.policy(s).gather(1, a)) - torch.log(old))
        surrogate = torch.min(ratio * advantage, torch.clamp(ratio, 1 - CLIP, 1 + CLIP) * advantage)
        loss = (-surrogate + nn.functional.smooth_l1_loss(model.value(s), target.detach())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loss {loss.item():.3f}")
