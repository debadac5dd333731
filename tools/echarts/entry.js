export { init } from "echarts/core";
import { use } from "echarts/core";
import { HeatmapChart, LineChart } from "echarts/charts";
import {
  DataZoomComponent,
  GridComponent,
  TooltipComponent,
  VisualMapComponent,
} from "echarts/components";
import { CanvasRenderer } from "echarts/renderers";

use([
  CanvasRenderer,
  DataZoomComponent,
  GridComponent,
  HeatmapChart,
  LineChart,
  TooltipComponent,
  VisualMapComponent,
]);
