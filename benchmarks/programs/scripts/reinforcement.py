"""Balancing a pole: REINFORCE and actor-critic, one state at a time."""

import math
import random

import torch
import torch.nn.functional as F
from log import Log, arguments
from torch import nn, optim
from torch.distributions import Categorical


class CartPole:
    """The classic pole on a cart, by Euler's method."""

    def reset(self):
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        return torch.tensor(self.state)

    def step(self, action):
        x, v, angle, spin = self.state
        force = 10.0 if action else -10.0
        sin, cos = math.sin(angle), math.cos(angle)
        push = (force + 0.05 * spin**2 * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        move = push - 0.05 * turn * cos / 1.1
        self.state = [x + 0.02 * v, v + 0.02 * move, angle + 0.02 * spin, spin + 0.02 * turn]
        done = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21
        return torch.tensor(self.state), 1.0, done


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine = nn.Linear(4, 128)
        self.action_head = nn.Linear(128, 2)
        self.value_head = nn.Linear(128, 1)

    def forward(self, state):
        x = F.relu(self.affine(state))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x).squeeze(-1)


def main():
    args = arguments(steps=60, names=("reinforce", "actor_critic"))
    random.seed(args.seed)
    env, policy = CartPole(), Policy()
    optimizer = optim.Adam(policy.parameters(), lr=1e-2)
    log = Log()
    for _ in range(args.steps):
        state, saved, rewards = env.reset(), [], []
        for _ in range(200):
            probabilities, value = policy(state)
            chosen = Categorical(probabilities)
            action = chosen.sample()
            state, reward, done = env.step(action.item())
            saved.append((chosen.log_prob(action), value))
            rewards.append(reward)
            if done:
                break
        returns, total = [], 0.0
        for reward in reversed(rewards):
            total = reward + 0.99 * total
            returns.insert(0, total)
        returns = torch.tensor(returns)
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        logs, values = (torch.stack(part) for part in zip(*saved, strict=True))
        if args.name == "reinforce":
            loss = -(logs * returns).sum()
        else:
            advantage = returns - values.detach()
            loss = -(logs * advantage).sum() + F.smooth_l1_loss(
                values, returns, reduction="sum"
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.step(-len(rewards))  # the longer the pole stands, the better
    log.end()


if __name__ == "__main__":
    main()
