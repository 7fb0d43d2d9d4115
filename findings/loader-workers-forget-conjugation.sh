#!/usr/bin/env bash
# A DataLoader gives the same samples whether it loads them itself or in workers. With PyTorch 2.13.0 a sample that is a conjugate, as
# fft(x).conj(), comes out of a worker without its conjugation, and a negated view with the other sign: of a tensor that another
# process is given, only the memory is handed over. Nothing is said. The same holds for torch.multiprocessing's queues.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import torch
from torch.utils.data import DataLoader, Dataset

print("torch", torch.__version__.split("+")[0])


class Spectra(Dataset):
    """Conjugated spectra of signals, and the imaginary parts of their first bins."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        spectrum = torch.fft.fft(torch.arange(3.0) ** index).conj()
        return spectrum, spectrum[1].imag


def main():
    came = {}
    for workers in (0, 1):
        loader = DataLoader(Spectra(), batch_size=None, num_workers=workers)
        came[workers] = [(spectrum.resolve_conj(), part.resolve_neg()) for spectrum, part in loader]
        print(f"{workers} workers: {came[workers][1][0].tolist()}, imaginary part {came[workers][1][1].item():.4f}")
    for (spectrum, part), (other, other_part) in zip(came[0], came[1], strict=True):
        assert torch.equal(other, spectrum.conj().resolve_conj())
        assert other_part == -part
    assert came[0][1][1] < -0.8


if __name__ == "__main__":
    main()
PROGRAM
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6
"$folder/environment/bin/python" -W ignore "$folder/program.py"
