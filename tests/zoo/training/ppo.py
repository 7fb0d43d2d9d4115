"""PPO with minibatches, clipped ratio, value loss and entropy bonus."""

import argparse

import torch
import torch.nn as nn
from torch.distributions import Categorical


class Agent(nn.Module):
    def __init__(self, obs_dim, n_actions, hidden=32):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(obs_dim, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        self.actor = nn.Sequential(nn.Linear(obs_dim, hidden), nn.Tanh(), nn.Linear(hidden, n_actions))
        for layer in (self.critic[-1], self.actor[-1]):
            nn.init.orthogonal_(layer.weight, 0.1)
            nn.init.constant_(layer.bias, 0.0)

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        logits = self.actor(x)
        probs = Categorical(logits=logits)
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


def collect(agent, steps, obs_dim):
    obs = torch.zeros(steps, obs_dim)
    actions = torch.zeros(steps, dtype=torch.long)
    logprobs, rewards, values = torch.zeros(steps), torch.zeros(steps), torch.zeros(steps)
    state = torch.randn(obs_dim)
    for step in range(steps):
        obs[step] = state
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(state.unsqueeze(0))
        actions[step], logprobs[step], values[step] = action[0], logprob[0], value[0, 0]
        rewards[step] = 1.0 if (state[0] > 0) == bool(action[0]) else -0.5
        state = 0.7 * state + 0.5 * torch.randn(obs_dim)
    with torch.no_grad():
        last = agent.get_value(state.unsqueeze(0))[0, 0]
    return obs, actions, logprobs, rewards, values, last


def gae(rewards, values, last, gamma, lam):
    advantages = torch.zeros_like(rewards)
    running = 0.0
    for t in reversed(range(len(rewards))):
        following = last if t == len(rewards) - 1 else values[t + 1]
        delta = rewards[t] + gamma * following - values[t]
        running = delta + gamma * lam * running
        advantages[t] = running
    return advantages, advantages + values


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--clip", type=float, default=0.2)
    parser.add_argument("--ent-coef", type=float, default=0.01)
    parser.add_argument("--vf-coef", type=float, default=0.5)
    args = parser.parse_args()
    torch.manual_seed(1)
    agent = Agent(4, 2)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.lr, eps=1e-5)
    for update in range(args.updates):
        obs, actions, logprobs, rewards, values, last = collect(agent, 32, 4)
        advantages, returns = gae(rewards, values, last, 0.99, 0.95)
        for _epoch in range(2):
            order = torch.randperm(32)
            for start in range(0, 32, 16):
                mb = order[start : start + 16]
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(obs[mb], actions[mb])
                ratio = (newlogprob - logprobs[mb]).exp()
                adv = advantages[mb]
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                pg_loss = torch.max(-adv * ratio, -adv * torch.clamp(ratio, 1 - args.clip, 1 + args.clip)).mean()
                newvalue = newvalue.view(-1)
                v_loss = 0.5 * ((newvalue - returns[mb]) ** 2).mean()
                entropy_loss = entropy.mean()
                loss = pg_loss - args.ent_coef * entropy_loss + v_loss * args.vf_coef
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        print(update, f"{loss.item():.4f} {rewards.mean().item():.3f}")


if __name__ == "__main__":
    main()
