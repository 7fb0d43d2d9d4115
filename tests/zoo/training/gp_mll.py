"""A Gaussian process by hand: the marginal likelihood with a Cholesky factor."""

import math

import torch


class RBF(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.log_length = torch.nn.Parameter(torch.tensor(0.0))
        self.log_scale = torch.nn.Parameter(torch.tensor(0.0))

    def forward(self, a, b):
        length = torch.exp(self.log_length)
        scale = torch.exp(self.log_scale)
        distance = (a[:, None] - b[None, :]).pow(2).sum(-1)
        return scale * torch.exp(-0.5 * distance / length**2)


class GaussianProcess(torch.nn.Module):
    def __init__(self, kernel, x, y):
        super().__init__()
        self.kernel = kernel
        self.raw_noise = torch.nn.Parameter(torch.tensor(-1.0))
        self.mean = torch.nn.Parameter(torch.zeros(()))
        self.x, self.y = x, y

    def covariance(self):
        noise = torch.nn.functional.softplus(self.raw_noise) + 1e-4
        gram = self.kernel(self.x, self.x)
        return gram + noise * torch.eye(len(self.x))

    def negative_log_likelihood(self):
        factor = torch.linalg.cholesky(self.covariance())
        residual = (self.y - self.mean).unsqueeze(-1)
        alpha = torch.cholesky_solve(residual, factor)
        fit = 0.5 * (residual * alpha).sum()
        complexity = factor.diagonal().log().sum()
        return fit + complexity + 0.5 * len(self.x) * math.log(2 * math.pi)

    @torch.no_grad()
    def predict(self, points):
        cross = self.kernel(points, self.x)
        weights = torch.linalg.solve(self.covariance(), self.y - self.mean)
        return self.mean + cross @ weights


def fit(model, steps, lr):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    history = []
    for _step in range(steps):
        optimizer.zero_grad()
        nll = model.negative_log_likelihood()
        nll.backward()
        optimizer.step()
        history.append(nll.item())
    return history


torch.manual_seed(0)
x = torch.linspace(-2, 2, 20).unsqueeze(-1)
y = torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(20)
model = GaussianProcess(RBF(), x, y)
history = fit(model, 20, 0.05)
print(f"{history[0]:.3f} -> {history[-1]:.3f}")
print([f"{value:.2f}" for value in model.predict(torch.tensor([[0.0], [0.5]])).tolist()])
