"""What an agent typically does: read data, compute, plot, save files."""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.linear_model import LinearRegression

houses = pd.read_csv("/data/houses.csv")
features = ["area_m2", "rooms", "age_years"]
model = LinearRegression().fit(houses[features], houses.price_keur)

print(houses.describe().round(1).to_string())
print()
for feature, weight in zip(features, model.coef_):
    print(f"one more {feature:<10} {weight:+8.2f} thousand euro")
print(f"R² = {model.score(houses[features], houses.price_keur):.3f}")

figure, axes = plt.subplots(figsize=(6, 4))
axes.scatter(model.predict(houses[features]), houses.price_keur, s=12, alpha=0.6)
axes.plot([100, 600], [100, 600], color="grey", linewidth=1)
axes.set(title="House prices", xlabel="predicted, thousand euro", ylabel="paid, thousand euro")
figure.tight_layout()
figure.savefig("/work/artifacts/prices.png", dpi=120)
plt.close(figure)
houses.to_parquet(Path("/work/artifacts") / "houses.parquet")
