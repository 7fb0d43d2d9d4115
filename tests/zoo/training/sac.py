"""Soft actor-critic on recorded transitions: two critics, their slow copies, an actor and a temperature."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal


class QNet(nn.Module):
    def __init__(self, obs, act):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs + act, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, obs, act):
        return self.net(torch.cat([obs, act], -1)).squeeze(-1)


class Policy(nn.Module):
    def __init__(self, obs, act):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, 24), nn.ReLU())
        self.mu = nn.Linear(24, act)
        self.log_std = nn.Linear(24, act)

    def forward(self, obs):
        h = self.body(obs)
        std = self.log_std(h).clamp(-5, 2).exp()
        dist = Normal(self.mu(h), std)
        u = dist.rsample()
        a = torch.tanh(u)
        logp = (dist.log_prob(u) - torch.log(1 - a.pow(2) + 1e-6)).sum(-1)
        return a, logp


class SAC:
    def __init__(self, obs=4, act=2):
        self.pi = Policy(obs, act)
        self.q1, self.q2 = QNet(obs, act), QNet(obs, act)
        self.q1_targ, self.q2_targ = copy.deepcopy(self.q1), copy.deepcopy(self.q2)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.q_opt = torch.optim.Adam([*self.q1.parameters(), *self.q2.parameters()], lr=3e-3)
        self.pi_opt = torch.optim.Adam(self.pi.parameters(), lr=1e-3)
        self.alpha_opt = torch.optim.Adam([self.log_alpha], lr=1e-3)

    def update(self, obs, act, rew, nxt):
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            a2, logp2 = self.pi(nxt)
            q_targ = torch.min(self.q1_targ(nxt, a2), self.q2_targ(nxt, a2))
            backup = rew + 0.97 * (q_targ - alpha * logp2)
        q1 = self.q1(obs, act)
        q2 = self.q2(obs, act)
        q_loss = F.mse_loss(q1, backup) + F.mse_loss(q2, backup)
        self.q_opt.zero_grad()
        q_loss.backward()
        self.q_opt.step()

        for p in [*self.q1.parameters(), *self.q2.parameters()]:
            p.requires_grad_(False)
        a, logp = self.pi(obs)
        q = torch.min(self.q1(obs, a), self.q2(obs, a))
        pi_loss = (alpha * logp - q).mean()
        self.pi_opt.zero_grad()
        pi_loss.backward()
        self.pi_opt.step()
        for p in [*self.q1.parameters(), *self.q2.parameters()]:
            p.requires_grad_(True)

        alpha_loss = -(self.log_alpha * (logp.detach() - 2)).mean()
        self.alpha_opt.zero_grad()
        alpha_loss.backward()
        self.alpha_opt.step()
        with torch.no_grad():
            for net, targ in ((self.q1, self.q1_targ), (self.q2, self.q2_targ)):
                for p, p_targ in zip(net.parameters(), targ.parameters(), strict=True):
                    p_targ.mul_(0.95).add_(0.05 * p)
        return q_loss.item(), pi_loss.item()


torch.manual_seed(0)
agent = SAC()
for step in range(8):
    obs, act = torch.randn(16, 4), torch.rand(16, 2) * 2 - 1
    rew = -(obs[:, :2] - act).pow(2).sum(-1)
    nxt = 0.9 * obs + 0.1 * torch.randn(16, 4)
    print(step, *agent.update(obs, act, rew, nxt))
