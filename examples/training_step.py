"""The first training step of a network: forward, loss, backward, step."""

import gradviz.engine as torch

net = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
with torch.no_grad():  # weights that can be followed by hand
    net[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))
    net[2].weight.copy_(torch.tensor([[2.0, 1.0]]))
    net[0].bias.zero_()
    net[2].bias.zero_()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x, target = torch.tensor([[3.0]]), torch.tensor([[5.0]])

prediction = net(x)
loss = ((prediction - target) ** 2).mean()
loss.backward()
optimizer.step()

after = ((net(x) - target) ** 2).mean()
print("loss:", loss, "then", after)
