"""A generative adversarial network with two optimizers."""

import torch
import torch.nn as nn


class Generator(nn.Module):
    def __init__(self, nz=4):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(nz, 16), nn.BatchNorm1d(16), nn.ReLU(True), nn.Linear(16, 2))

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, x):
        return self.main(x)


def weights_init(m):
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight.data, 0.0, 0.1)
        nn.init.constant_(m.bias.data, 0)


torch.manual_seed(0)
netG = Generator()
netD = Discriminator()
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
fixed_noise = torch.randn(8, 4)
G_losses, D_losses = [], []

for _ in range(8):
    real = torch.randn(16, 2) * 0.3 + torch.tensor([1.0, -1.0])
    # update D
    optimizerD.zero_grad()
    output = netD(real)
    errD_real = criterion(output, torch.ones(16, 1))
    noise = torch.randn(16, 4)
    fake = netG(noise)
    output = netD(fake.detach())
    errD_fake = criterion(output, torch.zeros(16, 1))
    errD = errD_real + errD_fake
    errD.backward()
    optimizerD.step()
    # update G
    optimizerG.zero_grad()
    output = netD(fake)
    errG = criterion(output, torch.ones(16, 1))
    errG.backward()
    optimizerG.step()
    G_losses.append(errG.item())
    D_losses.append(errD.item())

netG.eval()
with torch.no_grad():
    samples = netG(fixed_noise)
print(samples.mean(0), G_losses[-1], D_losses[-1])
