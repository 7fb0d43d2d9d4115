"""An actor and a critic with an optimizer each, on a small control problem."""

import torch
import torch.nn as nn
from torch.distributions import Normal


class Actor(nn.Module):
    def __init__(self, obs, act):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs, 16), nn.Tanh(), nn.Linear(16, act))
        self.log_std = nn.Parameter(torch.zeros(act))

    def forward(self, obs):
        return Normal(self.net(obs), self.log_std.exp())


class Critic(nn.Module):
    def __init__(self, obs):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, obs):
        return self.net(obs).squeeze(-1)


class Agent:
    def __init__(self):
        self.actor = Actor(3, 1)
        self.critic = Critic(3)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=1e-2)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=1e-2)
        self.gamma = 0.95

    def act(self, obs):
        with torch.no_grad():
            return self.actor(obs).sample()

    def update(self, obs, actions, rewards, next_obs):
        with torch.no_grad():
            target = rewards + self.gamma * self.critic(next_obs)
        values = self.critic(obs)
        critic_loss = (values - target).pow(2).mean()
        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()

        advantage = (target - values).detach()
        dist = self.actor(obs)
        log_prob = dist.log_prob(actions).sum(-1)
        entropy = dist.entropy().sum(-1).mean()
        actor_loss = -(log_prob * advantage).mean() - 0.01 * entropy
        self.actor_opt.zero_grad()
        actor_loss.backward()
        self.actor_opt.step()
        return actor_loss.item(), critic_loss.item()


def rollout(agent, steps):
    obs, rows = torch.randn(4, 3), []
    for _ in range(steps):
        action = agent.act(obs)
        next_obs = obs * 0.9 + 0.1 * action
        reward = -next_obs.pow(2).sum(-1)
        rows.append((obs, action, reward, next_obs))
        obs = next_obs
    return [torch.cat(column) for column in zip(*rows, strict=True)]


def main():
    torch.manual_seed(0)
    agent = Agent()
    for iteration in range(6):
        print(iteration, *agent.update(*rollout(agent, 5)))


main()
