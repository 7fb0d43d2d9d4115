"""A DCGAN on 16 x 16 pictures of noise and stripes."""

import torch
from torch import nn

torch.manual_seed(0)
NOISE, FEATURES = 16, 8


def weights_init(module):
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight.data, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight.data, 1.0, 0.02)
        nn.init.constant_(module.bias.data, 0)


netG = nn.Sequential(
    nn.ConvTranspose2d(NOISE, FEATURES * 2, 4, 1, 0, bias=False),
    nn.BatchNorm2d(FEATURES * 2),
    nn.ReLU(True),
    nn.ConvTranspose2d(FEATURES * 2, FEATURES, 4, 2, 1, bias=False),
    nn.BatchNorm2d(FEATURES),
    nn.ReLU(True),
    nn.ConvTranspose2d(FEATURES, 1, 4, 2, 1, bias=False),
    nn.Tanh(),
)
netD = nn.Sequential(
    nn.Conv2d(1, FEATURES, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(FEATURES, FEATURES * 2, 4, 2, 1, bias=False),
    nn.BatchNorm2d(FEATURES * 2),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(FEATURES * 2, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
)
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
stripes = torch.sin(torch.arange(16) * 0.8).expand(64, 1, 16, 16)
for real in stripes.split(16):
    netD.zero_grad()
    label = torch.full((len(real),), 1.0)
    errD_real = criterion(netD(real).view(-1), label)
    errD_real.backward()
    fake = netG(torch.randn(len(real), NOISE, 1, 1))
    label.fill_(0.0)
    errD_fake = criterion(netD(fake.detach()).view(-1), label)
    errD_fake.backward()
    optimizerD.step()
    netG.zero_grad()
    label.fill_(1.0)
    errG = criterion(netD(fake).view(-1), label)
    errG.backward()
    optimizerG.step()
print(f"loss of D {(errD_real + errD_fake).item():.3f}, of G {errG.item():.3f}")
